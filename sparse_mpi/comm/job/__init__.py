"""The job behind a communicator: how it ends, and optional watchdogs over it."""
