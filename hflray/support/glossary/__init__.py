"""The rows of the glossary of metrics by subject. `hflray.metrics` is the door to them."""
