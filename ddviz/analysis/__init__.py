"""What traces tell beside each other and over all their steps. Reads traces, needs no engine."""
