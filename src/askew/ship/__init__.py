"""What was trained is what runs: packed files and the runtime that reads them.

pack, fold, graph, file, layout, kernels, reference and runtime need numpy alone; trace and export see torch; onnx the
package onnx.
"""
