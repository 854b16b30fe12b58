"""How ranks exchange what they must agree on: transports, the signs of life between ranks, and processes of a mesh."""
