"""A fake of the package `sglang`, in the folder of a Python path; see `launch_server`."""
