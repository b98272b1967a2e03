"""Sync: cursors, one signed per batch that a device pulls and one opened per sign-on. Spec: §7."""

from qim_streams.sync.cursor import Cursor, CursorSigner
from qim_streams.sync.ports import MailboxAddress
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import DEVICE, PEER, PEER_ORDINAL, TENANT

KEY = b"k" * 32
ADDRESS = MailboxAddress(TENANT, PEER, DEVICE, PEER_ORDINAL, 5, PEER_ORDINAL & 63)
STRANGER = ADDRESS._replace(device_id="laptop-2")


@benchmark("sync.cursor.sign")
def sign() -> Case[str]:
    """A cursor for a device."""
    signer = CursorSigner(KEY)
    return Case(
        lambda: signer.issue(ADDRESS, 12, 90_210),
        lambda token: (
            signer.open(token, ADDRESS) == Cursor(5, 12, 90_210) and signer.open(token, STRANGER) is None
        ),
    )


@benchmark("sync.cursor.verify")
def verify() -> Case[Cursor | None]:
    """The position of a cursor that comes back."""
    signer = CursorSigner(KEY)
    token = signer.issue(ADDRESS, 12, 90_210)
    return Case(lambda: signer.open(token, ADDRESS), always(Cursor(5, 12, 90_210)))
