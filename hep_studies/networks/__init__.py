"""Networks of the sources for images, one file each."""
