"""Health check of a container: asks the page that QIM_PROBE_URL names. Exit codes: 0 ready, 1 not."""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main() -> int:
    """Ask once; print why not."""
    url = os.environ.get("QIM_PROBE_URL", "")
    if not url.startswith("http://127.0.0.1:"):
        print("QIM_PROBE_URL: name a page of this container, http://127.0.0.1:PORT/PATH", file=sys.stderr)
        return 1
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - loopback, see above
            return 0 if answer.status < 300 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
