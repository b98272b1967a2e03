"""One machine, one command: the embedded servers and one supervised process per role."""
