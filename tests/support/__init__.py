"""What several tests share: inputs, commands, a slow twin of the encoder, servers on loopback."""
