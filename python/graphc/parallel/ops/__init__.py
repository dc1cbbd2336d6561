"""ATen's ops in terms of graphc's: a function for each, in tables by name. Start with :mod:`.table`."""
