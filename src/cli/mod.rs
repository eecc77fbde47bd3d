//! What can be asked on the command line, one file a command.
