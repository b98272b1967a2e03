"""``python -m qim_streams.cli``: the same as the ``qim`` script, for children of a supervisor."""

from qim_streams.cli import main

main(prog_name="qim")
