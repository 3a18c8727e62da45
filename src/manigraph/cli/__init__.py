"""The command line: thin commands over the library. Nothing here imports torch before it must."""
