"""Who is of a federation: kits, certificates, members, and who may come in."""
