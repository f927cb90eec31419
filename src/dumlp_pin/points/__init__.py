"""Shapes in files: meshes and clouds of points, read, sampled, named, cut into parts and found."""
