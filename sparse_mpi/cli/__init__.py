"""The command line: values and parser of options, the launcher, the doctor."""
