"""What our HTTP servers say they are: "qim", and not which Python and which library in which version.

A stranger who can connect to a gateway would else read from any answer, also from the refusal of noise, which
published weakness to try. aiohttp has no option for it and writes the header of what it could not parse
outside of every hook, so its name is replaced where it is looked up.

What it does not do: hide that this is Q-IM; the protocol says so.
"""

from typing import Final

from aiohttp import web_response

NAME: Final = "qim"


def name_servers() -> None:
    """From here on every aiohttp server of this process names itself so. May be called again."""
    vars(web_response)["SERVER_SOFTWARE"] = NAME
