"""The engine on `openvino_genai`: fast, and limited to what GenAI reports or a replay can reconstruct."""
