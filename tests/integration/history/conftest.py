"""History over real sockets runs on both event loops, as the gateway's other tests do."""

from tests.integration.gateway.conftest import event_loop_policy

__all__ = ["event_loop_policy"]
