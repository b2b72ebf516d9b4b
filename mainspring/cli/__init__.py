"""The command line. Command modules import heavy things inside their commands only, so that
importing the CLI stays under half a second."""
