"""What a trained run says about images, beyond its predictions."""
