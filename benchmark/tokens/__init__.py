"""What the frozen trunk makes of pictures: pictures in, tokens out, from disk, from memory or computed anew.

Backbone, weights, the bank on disk and its builder. May import: methods, data, protocol.
"""
