"""The demo corpus: real text in many languages, carried by published Python packages."""
