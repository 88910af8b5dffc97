"""A fake of the package `tensorrt_llm`, in the folder of a Python path; see `commands.serve`."""
