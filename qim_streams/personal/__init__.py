"""A user's data: what there is (``collecting``), given to him, and taken out (``erasing``)."""
