"""The executables of allot as a Python package; __main__ starts them."""
