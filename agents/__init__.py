"""Faust agents, one module each, one worker role each; thin: decode, service, ack."""
