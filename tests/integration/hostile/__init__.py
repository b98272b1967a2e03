"""What strangers, users and operators with bad intentions try, against the real processes on real sockets."""
