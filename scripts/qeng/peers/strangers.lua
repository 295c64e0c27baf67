-- Says who dialed and was not let in, which nobody is told who dials. peers: of q.peers.open.

return function(peers, say)
  for _, one in ipairs(peers:refused()) do
    say(("refused %s, whose key is unknown here; to let it in: q.keys { know = { name = \"NAME\", public = \"%s\" } }")
      :format(one.address, one.key))
  end
end
