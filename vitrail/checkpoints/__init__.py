"""Reading and writing weights: the bundle, this program's own format, and the formats of Google's code, timm, Hugging
Face and torchvision, each a two-way map of tensor names."""
