"""Where the registry looks for metrics of the package: none, its own are records."""
