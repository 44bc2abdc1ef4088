#version 450
layout(local_size_x = 1) in;
layout(binding = 0) buffer First { float first[]; };
void main() { first[0] += 1.0; }
