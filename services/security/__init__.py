"""Decisions on what a client may do (pure).

Who somebody is, is found out by modules (services/plugins/authentication.py); what he may do is
said by others (services/plugins/entitlement.py). What their answers mean is decided in here.
"""
