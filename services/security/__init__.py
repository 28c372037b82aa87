"""Who may do what: what is asked of a client, and what it is allowed (pure).

Who somebody is, is found out by modules (services/plugins/authentication.py); what he may do is
said by others (services/plugins/entitlement.py). What their answers mean is decided in here.
"""
