"""How much a tenant may ask for: fan-out quotas shared by all writers, rates of conversations, login rules.

Spec: §3.2 (L2, L3), §13.
"""
