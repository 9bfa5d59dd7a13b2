"""What every other room uses: whole files, checksums, seals, safe texts, versions, array types and command lines."""
