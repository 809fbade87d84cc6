"""C++ kernels with a C interface, called through ctypes: what Python and torch would need many passes for.

build.py lists and compiles the libraries, loader.py finds them. All are optional: what calls them has a slower twin.
"""
