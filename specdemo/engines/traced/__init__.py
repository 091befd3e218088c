"""The engine on `openvino` alone: our own draft/verify loop, in which every proposal and probability is visible."""
