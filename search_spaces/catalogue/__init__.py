"""Known hardware and known models, each as a class and a YAML file."""
