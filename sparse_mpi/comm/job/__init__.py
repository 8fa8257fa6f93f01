"""The job behind a communicator: what ends it, and watchdogs over it, for those who ask for them."""
