"""From YAML files to a validated configuration, with the position of every value kept."""
