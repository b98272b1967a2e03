"""Health check of a container: asks the page that QIM_PROBE_URL names. Exit codes: 0 ready, 1 not."""

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main() -> int:
    """Ask once; print why not."""
    url = os.environ.get("QIM_PROBE_URL", "")
    if not url.startswith(("http://127.0.0.1:", "https://127.0.0.1:")):
        print("QIM_PROBE_URL: name a page of this container, http(s)://127.0.0.1:PORT/PATH", file=sys.stderr)
        return 1
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=_context(url)) as answer:  # noqa: S310 - loopback, see above
            return 0 if answer.status < 300 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


def _context(url: str) -> ssl.SSLContext | None:
    """Of this container's own port: its certificate has another name. Web views ask for a certificate."""
    if not url.startswith("https:"):
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    cert, key = (os.environ.get(f"QIM_INTERNAL_TLS_{part}_FILE") for part in ("CERT", "KEY"))
    if cert and key:
        context.load_cert_chain(cert, key)
    return context


if __name__ == "__main__":
    sys.exit(main())
