"""Decisions on what a client may do (pure).

Authentication modules find out who a client is (services/plugins/authentication.py), and
entitlement modules what that user may do (services/plugins/entitlement.py). This package decides
what their answers mean.
"""
