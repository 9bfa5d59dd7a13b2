"""What every other room uses: whole files, stores, checkpoints, checksums, safe texts, versions and command lines."""
