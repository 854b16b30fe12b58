"""Images of a sample: files measured from their header, augmentation that is planned first, patches of pixels."""
