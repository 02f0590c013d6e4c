"""Images: a dataset's specification in, pixels in an order that says nothing of their classes, and labels, out.

Layouts on disk, the store of decoded pixels, downloads, augmented views, sessions. May import: protocol.
"""
