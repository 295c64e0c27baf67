#include "engine/parquet/parquet_source.h"

namespace qeng {
namespace {
const SourceFormat parquet("Parquet", "PAR1", {"parquet"}, open_parquet);
}  // namespace
}  // namespace qeng
