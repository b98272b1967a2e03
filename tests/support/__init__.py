"""What tests share: waiting on conditions, and a real stack of real processes."""
