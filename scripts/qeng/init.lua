-- require "qeng": one table with the engine's functions (bound in C++, qeng.core) and the Lua library.
-- bindings/api.lua is the reference. Everything here may be copied into a recipe and changed.

local q = require "qeng.core"

io.stdout:setvbuf "line"  -- so that a log shows it between the progress lines of stderr

local adamw = require "qeng.train.adamw"
local bpe = require "qeng.data.bpe"
local chat = require "qeng.chat"
local conversation = require "qeng.infer.conversation"
local data = require "qeng.data"
local engine = require "qeng.infer.engine"
local generate = require "qeng.infer.generate"
local hub = require "qeng.hub"
local models = require "qeng.model"
local inertia = require "qeng.onebit.inertia"
local onebit = require "qeng.onebit"
local onebit_convert = require "qeng.onebit.convert"
local onebit_compare = require "qeng.onebit.compare"
local onebit_pretrain = require "qeng.onebit.pretrain"
local options = require "qeng.console.options"
local output = require "qeng.console.output"
local phases = require "qeng.onebit.phases"
local runs = require "qeng.train.run"
local run_folder = require "qeng.train.run_folder"
local sampling = require "qeng.infer.sampling"
local schedule = require "qeng.train.schedule"
require "qeng.algebra"
q.losses = require "qeng.losses"
require "qeng.summaries"
require "qeng.tensor_files"
require "qeng.console.tables"
require "qeng.console.timing"

q.options = options.parse
function q.load(path, opt)
  if opt and not opt.peers then options.refuse_others("load", opt, models.load_options) end
  return models.load(path, opt)
end
q.random_model = models.random
q.micro_batch = models.micro_batch
q.train = require "qeng.train"
q.run = runs.new
q.loop = require("qeng.train.loop").new
q.adamw = adamw.new
q.hopfield = require("qeng.infer.hopfield").new
q.edit = require "qeng.edit"
q.records = require "qeng.data.records"
q.pack = require("qeng.model.documents").pack
q.group_answers = require "qeng.train.group_answers"
q.rewards = require "qeng.train.rewards"
q.preferences = require("qeng.train.preferences").read
q.optim = require "qeng.optim"
for _, name in ipairs { "sgd", "lion", "muon", "adafactor" } do require("qeng.optim." .. name) end
q.plan = require "qeng.plan"
q.plot = require "qeng.report.plot"
q.convert = data.convert
q.data_files = data.inputs
q.check_output = output.file
q.run_folder = run_folder.open
q.train_tokenizer = bpe.train
q.conversion_summary = data.summary
q.conversion_sample = data.sample
q.packets = data.open
q.chat_template = chat.template
q.schedule = schedule.make
q.constant, q.cosine, q.wsd = schedule.constant, schedule.cosine, schedule.wsd
q.hub.model = hub.model
q.hub.data = hub.data
q.hub.files = hub.files
q.use_device = require "qeng.console.shared"
q.finetune = require "qeng.train.finetune"

q.onebit.random = onebit.random
q.onebit.learn = onebit.learn
q.onebit.unpack = onebit.unpack
q.onebit.weights = onebit.weights
q.onebit.compare = onebit_compare.run
q.onebit.convert = onebit_convert.run
q.onebit.inertia_options = onebit_pretrain.inertia
q.onebit.pretrain = onebit_pretrain.run
q.inertia = inertia.new
q.phases = phases.new

q.engine = engine.new
q.server = require("qeng.server").new
q.serve = require "qeng.server.options"
require "qeng.peers"
require "qeng.peers.remote_data"
q.worker = require "qeng.peers.options"
q.conversation = conversation.new
q.generation = sampling.read
q.kv_option = require "qeng.infer.kv_option"

q.help = require "qeng.console.help"

models.Model.generate = generate.text
models.Model.answer = generate.answer
models.Model.engine = engine.new

return q
