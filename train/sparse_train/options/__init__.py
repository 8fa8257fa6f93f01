"""The command line of the training programs: options, their types, and objects built from them alone."""
