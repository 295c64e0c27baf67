#pragma once
#include <map>
#include <string>
#include <vector>
namespace qeng { struct RopeOptions{int dim;double theta;int64_t length,max_position_embeddings;std::map<std::string,double> numbers;std::map<std::string,std::string> words;}; struct RopeFrequencies{std::vector<float> inv_freq; float scale;}; RopeFrequencies make_rope(const RopeOptions&);}
