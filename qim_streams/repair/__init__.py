"""``qim repair``: what the hot tier is behind of, and bringing it back (Spec: §14.4).

Reading order: ``rules`` (what is whole), ``status`` (reading it), ``run`` (doing it).
"""
