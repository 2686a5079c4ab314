"""Convolution and pooling, with height and width split over the mesh."""
